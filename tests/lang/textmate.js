// Texts → the scopes that an editor gives them: { file: [[start, end, [scope, …]], …] } on standard output, in UTF-16
// units from the start of the text. Arguments: node_modules with VS Code's own engine, the grammar, the files.
const fs = require("node:fs");
const path = require("node:path");

const [modules, grammarPath, ...files] = process.argv.slice(2);
const oniguruma = require(path.join(modules, "vscode-oniguruma"));
const textmate = require(path.join(modules, "vscode-textmate"));

async function main() {
  const wasm = fs.readFileSync(path.join(modules, "vscode-oniguruma", "release", "onig.wasm"));
  await oniguruma.loadWASM(wasm);
  const registry = new textmate.Registry({
    onigLib: Promise.resolve({
      createOnigScanner: (patterns) => new oniguruma.OnigScanner(patterns),
      createOnigString: (text) => new oniguruma.OnigString(text),
    }),
    loadGrammar: async () => textmate.parseRawGrammar(fs.readFileSync(grammarPath, "utf8"), grammarPath),
  });
  const grammar = await registry.loadGrammar("source.cep");
  const found = {};
  for (const file of files) {
    let stack = textmate.INITIAL;
    let offset = 0;
    found[file] = [];
    for (const line of fs.readFileSync(file, "utf8").split("\n")) {
      const { tokens, ruleStack } = grammar.tokenizeLine(line, stack);
      for (const { startIndex, endIndex, scopes } of tokens) {
        const end = Math.min(endIndex, line.length);
        if (end > startIndex) found[file].push([offset + startIndex, offset + end, scopes.slice(1)]);
      }
      stack = ruleStack;
      offset += line.length + 1;
    }
  }
  process.stdout.write(JSON.stringify(found));
}

main();
