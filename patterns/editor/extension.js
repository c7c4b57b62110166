// Starts `cep lsp` for pattern files. Everything else, running tests included, the server does.
const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function activate() {
  const command = workspace.getConfiguration("cep").get("command");
  client = new LanguageClient(
    "cep",
    "Event patterns",
    { command, args: ["lsp"] },
    {
      documentSelector: [{ language: "cep" }],
      synchronize: { fileEvents: workspace.createFileSystemWatcher("**/*.cep") },
    },
  );
  return client.start();
}

function deactivate() {
  return client?.stop();
}

module.exports = { activate, deactivate };
