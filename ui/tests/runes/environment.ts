// Runs in Node what is compiled for a browser: runes are reactive, and there is no DOM. Tests stub what they need of it.
import type { Environment } from 'vitest/runtime';

export default {
  name: 'runes',
  viteEnvironment: 'client',
  setup: () => ({ teardown: () => undefined }),
} satisfies Environment;
