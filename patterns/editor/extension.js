// Starts `cep lsp` for pattern files, and runs `cep test` in a terminal when a lens is clicked.
const { commands, window, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function activate(context) {
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
  context.subscriptions.push(
    commands.registerCommand("cep.test", (path) => {
      const name = "cep test";
      const terminal = window.terminals.find((open) => open.name === name) ?? window.createTerminal(name);
      terminal.show();
      terminal.sendText(`${command} test "${path}"`);
    }),
  );
  return client.start();
}

function deactivate() {
  return client?.stop();
}

module.exports = { activate, deactivate };
