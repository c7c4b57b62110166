// A session with `cep lsp` by the library that VS Code's client speaks the protocol with; what was answered as JSON on
// standard output. Arguments: node_modules, the folder of the workspace, and the command of the server.
const fs = require("node:fs");
const path = require("node:path");
const { spawn } = require("node:child_process");
const { pathToFileURL } = require("node:url");

const [modules, root, command, ...words] = process.argv.slice(2);
const lsp = require(path.join(modules, "vscode-languageserver-protocol", "node"));

async function main() {
  const server = spawn(command, words, { stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise((resolve) => server.on("exit", resolve));
  const connection = lsp.createProtocolConnection(
    new lsp.StreamMessageReader(server.stdout),
    new lsp.StreamMessageWriter(server.stdin),
  );
  const published = [];
  let told = () => {};
  const messages = [];
  connection.onNotification(lsp.PublishDiagnosticsNotification.type, (found) => {
    published.push(found.diagnostics.map((d) => d.code));
    told();
  });
  connection.onNotification(lsp.ShowMessageNotification.type, (shown) => messages.push(shown.message));
  connection.onNotification(lsp.LogMessageNotification.type, () => {});
  connection.listen();
  const file = path.join(root, "p.cep");
  const uri = pathToFileURL(file).toString();
  const text = fs.readFileSync(file, "utf8");
  const textDocument = { uri };
  const at = (part, into = 1) => {
    const before = text.slice(0, text.indexOf(part) + into).split("\n");
    return { line: before.length - 1, character: before[before.length - 1].length };
  };
  const next = () => new Promise((resolve) => (told = resolve));
  const initialized = await connection.sendRequest(lsp.InitializeRequest.type, {
    processId: process.pid,
    rootUri: pathToFileURL(root).toString(),
    workspaceFolders: [{ uri: pathToFileURL(root).toString(), name: "workspace" }],
    capabilities: {
      workspace: { workspaceEdit: { documentChanges: true }, executeCommand: {}, configuration: true },
      textDocument: { hover: { contentFormat: ["markdown"] }, rename: { prepareSupport: true }, codeLens: {} },
    },
  });
  connection.sendNotification(lsp.InitializedNotification.type, {});
  let waiting = next();
  connection.sendNotification(lsp.DidOpenTextDocumentNotification.type, {
    textDocument: { uri, languageId: "cep", version: 1, text },
  });
  await waiting;
  waiting = next();
  connection.sendNotification(lsp.DidChangeTextDocumentNotification.type, {
    textDocument: { uri, version: 2 },
    contentChanges: [{ text: text.replace("status == declined", "status == declned") }],
  });
  await waiting;
  waiting = next();
  connection.sendNotification(lsp.DidChangeTextDocumentNotification.type, {
    textDocument: { uri, version: 3 },
    contentChanges: [{ text }],
  });
  await waiting;
  const asked = (type, more) => connection.sendRequest(type, { textDocument, ...more });
  const hover = await asked(lsp.HoverRequest.type, { position: at("probe{") });
  const completion = await asked(lsp.CompletionRequest.type, { position: at("status == ", 10) });
  const definition = await asked(lsp.DefinitionRequest.type, { position: at("least,") });
  const rename = await asked(lsp.RenameRequest.type, { position: at("probe{"), newName: "attempt" });
  const options = { tabSize: 2, insertSpaces: true };
  const formatting = await asked(lsp.DocumentFormattingRequest.type, { options });
  const lenses = await asked(lsp.CodeLensRequest.type, {});
  const run = await connection.sendRequest(lsp.ExecuteCommandRequest.type, lenses[lenses.length - 1].command);
  await connection.sendRequest(lsp.ShutdownRequest.type);
  connection.sendNotification(lsp.ExitNotification.type);
  const code = await ended;
  const answers = {
    capabilities: initialized.capabilities, published, hover, completion, definition, rename, formatting, lenses, run,
    messages, code,
  }; // prettier-ignore
  process.stdout.write(JSON.stringify(answers));
}

main();
