import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { problemsIn } from '../../scripts/layers.mjs';

const made: string[] = [];
afterEach(() => made.splice(0).forEach((dir) => rmSync(dir, { recursive: true })));

function tree(files: Record<string, string>): string {
  const src = mkdtempSync(join(tmpdir(), 'layers-'));
  made.push(src);
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(src, name)), { recursive: true });
    writeFileSync(join(src, name), text);
  }
  return src;
}

test('imports may run down, stay in their folder, and start at the entry', () => {
  const src = tree({
    'base/format.ts': '',
    'domain/app.svelte.ts': "import { a } from '../base/format';",
    'features/runs/Runs.svelte': "<script>import { app } from '../../domain/app.svelte';\nimport './list';</script>",
    'features/runs/list.ts': '',
    'shell/views.ts': "const load = () => import('../features/runs/Runs.svelte');",
    'main.ts': "import { v } from './shell/views';",
  });
  expect(problemsIn(src)).toEqual([]);
});

test('an import that runs up, between features, or out of the layers is named', () => {
  const src = tree({
    'base/format.ts': "import type { A } from '../domain/app';",
    'domain/app.ts': "export const load = () => import('../features/runs/list');",
    'features/runs/list.ts': "import {\n  b,\n} from '../traces/model';",
    'features/traces/model.ts': '',
    'lib/old.ts': '',
  });
  const found = problemsIn(src).sort();
  expect(found).toHaveLength(4);
  expect(found[0]).toContain('base/format.ts: imports domain/app.ts, but base may not import domain');
  expect(found[1]).toContain('domain/app.ts: imports features/runs/list.ts, but domain may not import features');
  expect(found[2]).toContain('features/runs/list.ts: imports features/traces/model.ts, but the feature runs may not import the feature traces');
  expect(found[3]).toContain('lib/old.ts: the folder lib is no layer');
});
