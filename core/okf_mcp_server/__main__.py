"""`python -m okf_mcp_server` is the console script `okf-mcp-server`."""

from okf_mcp_server.stdio import main

if __name__ == "__main__":
    main()
