#!/bin/sh
# Kills the process groups that outlive the gateway. It is told `+id` of each that runs, and `-id`
# before the last of it is reaped, so that no id in its list is ever another's. The end of its input
# is the end of the gateway; a signal that is sent to both is not.
trap '' HUP INT QUIT TERM
running=' '
while read -r line; do
	group=${line#?}
	case $line in
	+*) running="$running$group " ;;
	-*) running="${running%%" $group "*} ${running#*" $group "}" ;;
	esac
done
for group in $running; do
	kill -9 "-$group"
done
