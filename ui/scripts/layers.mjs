// Which folder of src may import which, checked: generated <- base <- data <- domain <- features/* <- shell. An import runs down
// or stays in its folder. Features do not import each other: what one shows of another goes through domain/slots.ts.
// Files that lie in src itself (the entry) belong to the shell.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const LAYERS = ['generated', 'base', 'data', 'domain', 'features', 'shell'];
const IMPORT = /(?:\bfrom\s*|\bimport\s*\(\s*|\bimport\s+)(['"])(\.[^'"]*)\1/g;

const filesIn = (dir) =>
  readdirSync(dir, { withFileTypes: true }).flatMap((e) => (e.isDirectory() ? filesIn(join(dir, e.name)) : [join(dir, e.name)]));

/** The layer of a file, and the feature it belongs to. */
function placeOf(file) {
  const parts = file.split('/');
  return { layer: parts.length === 1 ? 'shell' : parts[0], feature: parts[0] === 'features' ? parts[1] : null };
}

/** The file that an import names, or null. */
function target(src, file, spec) {
  const path = join(src, dirname(file), spec.split('?')[0]);
  const found = [path, `${path}.ts`, `${path}.svelte`].find((p) => existsSync(p) && !p.endsWith('/'));
  return found ? relative(src, found) : null;
}

/** What is wrong with the imports below `src`: a sentence each. */
export function problemsIn(src) {
  const problems = [];
  for (const path of filesIn(src).filter((f) => /\.(ts|svelte)$/.test(f))) {
    const file = relative(src, path);
    const from = placeOf(file);
    if (!LAYERS.includes(from.layer)) {
      problems.push(`${file}: the folder ${from.layer} is no layer; expected one of: ${LAYERS.join(', ')}`);
      continue;
    }
    for (const [, , spec] of readFileSync(path, 'utf8').matchAll(IMPORT)) {
      const found = target(src, file, spec);
      if (found === null || found.startsWith('..')) {
        problems.push(`${file}: imports ${spec}, which is not a file of src`);
        continue;
      }
      const to = placeOf(found);
      if (LAYERS.indexOf(to.layer) > LAYERS.indexOf(from.layer)) {
        problems.push(`${file}: imports ${found}, but ${from.layer} may not import ${to.layer}; move what both need down, or pass it in`);
      } else if (from.feature !== null && to.feature !== null && from.feature !== to.feature) {
        problems.push(
          `${file}: imports ${found}, but the feature ${from.feature} may not import the feature ${to.feature}; move what both need to domain, or use domain/slots.ts`,
        );
      }
    }
  }
  return problems;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const problems = problemsIn(fileURLToPath(new URL('../src', import.meta.url)));
  for (const p of problems) console.error(`src/${p}`);
  if (problems.length > 0) process.exit(1);
  console.log(`imports run down only: ${LAYERS.join(' <- ')}`);
}
