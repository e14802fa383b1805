"""The real parts that the tests stand on: repositories, git hosts, processes, clients."""
