// Prints the compressed size of the page and fails when it is over the budget.
import { readFileSync, readdirSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
const BUDGET = 300_000;
let total = 0;
const walk = (dir) => readdirSync(dir, { withFileTypes: true }).flatMap((e) => (e.isDirectory() ? walk(`${dir}/${e.name}`) : [`${dir}/${e.name}`]));
for (const file of walk('dist')) {
  const size = gzipSync(readFileSync(file), { level: 9 }).length;
  total += size;
  console.log(`${file.padEnd(52)} ${String(size).padStart(8)} B gzip`);
}
const one = gzipSync(readFileSync('dist-static/viewer.html'), { level: 9 }).length;
console.log(
  `${'dist (all)'.padEnd(52)} ${String(total).padStart(8)} B gzip\n${'dist-static/viewer.html'.padEnd(52)} ${String(one).padStart(8)} B gzip`,
);
if (total > BUDGET || one > BUDGET) {
  console.error(`over the budget of ${BUDGET} bytes`);
  process.exit(1);
}
