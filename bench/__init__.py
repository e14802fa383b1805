"""The benchmark, `make bench`: what the gateway costs, against what is possible on this machine."""
