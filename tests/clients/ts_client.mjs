// Started by ts_client.py: node ts_client.mjs CLIENTS_HOME URL TOOL JSON ERA [TOKEN]
import { pathToFileURL } from "node:url";

const [home, url, tool, json, era, token] = process.argv.slice(2);
const entry = pathToFileURL(`${home}/node_modules/@modelcontextprotocol/client/dist/index.mjs`);
const { Client, StreamableHTTPClientTransport } = await import(entry);

const mode = era === "legacy" || era === "auto" ? era : { pin: era };
const client = new Client({ name: "ts-check", version: "0" }, { versionNegotiation: { mode } });
const headers = token ? { Authorization: `Bearer ${token}` } : {};
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const { tools } = await client.listTools();
if (!tools.some(({ name }) => name === tool)) {
  console.error("the tool is not listed:", tools.map(({ name }) => name));
  process.exit(2);
}
const result = await client.callTool({ name: tool, arguments: JSON.parse(json) });
await client.close();
process.exit(result.isError ? 3 : 0);
