// The TypeScript SDK on the same documents: node typescript_server.mjs PORT DOCUMENTS.json, where
// the file has a list of resources for each owner, `text` and all.
import { readFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [port, documents, packages] = process.argv.slice(2);
const require = createRequire(path.join(packages, "index.js"));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { createMcpHandler, Server } = await load("@modelcontextprotocol/server");
const { toNodeHandler } = await load("@modelcontextprotocol/node");

function handlerOf(owner, all) {
  const listed = all.map(({ text, ...resource }) => resource);
  const byUri = new Map(all.map((each) => [each.uri, each]));
  const makeServer = () => {
    const server = new Server({ name: owner, version: "1" }, { capabilities: { resources: {} } });
    server.setRequestHandler("resources/list", () => ({ resources: listed }));
    server.setRequestHandler("resources/read", ({ params: { uri } }) => {
      const { mimeType, text } = byUri.get(uri);
      return { contents: [{ uri, mimeType, text }] };
    });
    return server;
  };
  return toNodeHandler(createMcpHandler(makeServer));
}

const handlers = new Map();
for (const [owner, all] of Object.entries(JSON.parse(readFileSync(documents)))) {
  handlers.set(`/${owner}/mcp`, handlerOf(owner, all));
}
http
  .createServer((request, response) => handlers.get(request.url)(request, response))
  .listen(Number(port), "127.0.0.1");
