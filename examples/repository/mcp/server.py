# /// script
# requires-python = ">=3.11"
# dependencies = ["okf-mcp-server"]
#
# [tool.uv.sources]
# okf-mcp-server = { git = "https://git.example/team/okf-mcp-server", tag = "v0.1.0" }
# ///
from okf_mcp_server import run

run()
