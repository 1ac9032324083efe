// The page's types of the API are those of the server's document, docs/openapi.json, which a test of crates/server writes.
import { readFileSync, writeFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { apiTypes } from '../../scripts/api-types.mjs';

it('keeps src/generated/api.ts up to date', async () => {
  const file = new URL('../../src/generated/api.ts', import.meta.url);
  const types = await apiTypes();
  if (process.env.UPDATE) writeFileSync(file, types);
  expect(readFileSync(file, 'utf8'), 'src/generated/api.ts is stale: UPDATE=1 npm test').toBe(types);
});
