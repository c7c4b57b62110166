// Starts `cep lsp` for pattern files. Everything else, running tests included, the server does.
const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function activate() {
  // The server is a program of the user's machine: a value that a workspace brings along does not count.
  const { globalValue, defaultValue } = workspace.getConfiguration("cep").inspect("command");
  const command = globalValue ?? defaultValue;
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
