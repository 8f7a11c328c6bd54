// Started by ts_client.py: node ts_client.mjs CLIENTS_HOME URL CALLS ERA [TOKEN]; CALLS is JSON: [[tool, arguments, …], …]
import { pathToFileURL } from "node:url";

const [home, url, calls, era, token] = process.argv.slice(2);
const entry = pathToFileURL(`${home}/node_modules/@modelcontextprotocol/client/dist/index.mjs`);
const { Client, StreamableHTTPClientTransport } = await import(entry);

const mode = era === "legacy" || era === "auto" ? era : { pin: era };
const client = new Client({ name: "ts-check", version: "0" }, { versionNegotiation: { mode } });
const headers = token ? { Authorization: `Bearer ${token}` } : {};
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const { tools } = await client.listTools();
const names = tools.map(({ name }) => name);
for (const [name, args] of JSON.parse(calls)) {
  if (!names.includes(name)) {
    console.error(`${name} is not listed:`, names);
    process.exit(2);
  }
  const result = await client.callTool({ name, arguments: args });
  if (result.isError) {
    console.error(`${name} failed:`, result.content);
    process.exit(3);
  }
}
await client.close();
process.exit(0);
