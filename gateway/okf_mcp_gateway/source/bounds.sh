#!/bin/sh
# Becomes git, within bounds that hold for all that it starts, too: whatever a host sends, one owner
# takes no more of what all share. They are set here, since a bound set from outside comes too late.
# A lower one that is there stays: the soft bound is touched only where it is above ours.
bound() {
	ulimit "-H$1" "$2" || ulimit "-$1" "$2"
} 2>/dev/null

bound c 0       # no core, in which a token would be
bound d 1048576 # 1 GiB of memory of its own, in KiB
bound f 8388608 # 4 GiB in one file, such as the pack of a fetch, in blocks of 512 bytes
unset PWD OLDPWD SHLVL # the shell's own, which are none of git's
exec git "$@"
