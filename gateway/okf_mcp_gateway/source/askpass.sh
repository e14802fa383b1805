#!/bin/sh
# git asks here for the password of a host. The token waits in a pipe that only this git process and
# its children have, and is given for one question only: the host that it is bound to.
case $1 in
"$OKF_ASKPASS_PROMPT" | "$OKF_ASKPASS_PROMPT_ENCODED") exec cat "/dev/fd/$OKF_ASKPASS_FD" ;;
*) exit 1 ;;
esac
