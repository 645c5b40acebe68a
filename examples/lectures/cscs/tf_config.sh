#!/bin/bash
# Two workers by hand, each in a process of its own; on two machines each line is typed on its own.
set -e
cd "$(dirname "$0")"

python tf_config.py 1 &
other=$!
trap 'kill $other 2> /dev/null || true' EXIT  # if worker 0 fails or is stopped, worker 1 would wait for it
python tf_config.py 0
wait $other
trap - EXIT
