#!/bin/sh
# Becomes git, within bounds that hold for all that it starts, too: whatever a host sends, one owner
# takes no more of what all share. They are set here, since a bound set from outside comes too late.
# No core, in which a token would be; 1 GiB of memory of its own, in KiB; 4 GiB in one file, such as
# the pack of a fetch, in blocks of 512 bytes. Where the system gives less, that stays.
ulimit -c 0 2>/dev/null
ulimit -d 1048576 2>/dev/null
ulimit -f 8388608 2>/dev/null
# The shell's own, which are none of git's.
unset PWD OLDPWD SHLVL
exec git "$@"
