// Two builds from one source. The default one goes into the binary (index.html and hashed assets, the layout worker a file
// of its own: the server's policy is script-src 'self'). `--mode static` makes one self-contained viewer.html: script,
// styles and the worker inside, with a marker where the binary puts the data.
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vitest/config';
import { oneFile } from './scripts/one-file.mjs';

const api = process.env.ROLLSCOPE_API ?? 'http://127.0.0.1:7200';

export default defineConfig(({ mode }) => {
  const isStatic = mode === 'static';
  return {
    base: './',
    plugins: [svelte(), ...(isStatic ? [oneFile()] : [])],
    define: { __STATIC__: JSON.stringify(isStatic) },
    resolve: { alias: isStatic ? { '#worker': '/src/features/timeline/worker-inline.ts' } : { '#worker': '/src/features/timeline/worker-file.ts' } },
    // From file: a page may start no module worker out of a blob: its origin is none, and a module needs one. A plain script may.
    worker: { format: isStatic ? ('iife' as const) : ('es' as const) },
    build: {
      outDir: isStatic ? 'dist-static' : 'dist',
      target: 'es2022',
      // What a view imports is asked for together with it. The one file has nothing to ask for.
      modulePreload: isStatic ? (false as const) : { polyfill: false },
      assetsInlineLimit: isStatic ? 100_000_000 : 0,
      cssCodeSplit: !isStatic,
      sourcemap: false,
      // One script for the one file; for the server each view is a file of its own, read when it is first shown.
      ...(isStatic ? { rolldownOptions: { output: { codeSplitting: false } } } : {}),
    },
    server: { proxy: { '/api': api, '/prometheus': api } },
    test: {
      projects: [
        { extends: true as const, test: { name: 'unit', include: ['tests/unit/**/*.test.ts'], environment: 'node', testTimeout: 60_000 } },
        {
          extends: true as const,
          resolve: { conditions: ['browser'] },
          test: {
            name: 'runes',
            include: ['tests/runes/**/*.svelte.test.ts'],
            environment: './tests/runes/environment.ts',
            server: { deps: { inline: ['svelte'] } },
            testTimeout: 60_000,
          },
        },
        {
          extends: true as const,
          test: {
            name: 'real',
            include: ['tests/real/**/*.test.ts'],
            environment: 'node',
            testTimeout: 180_000,
            hookTimeout: 180_000,
            fileParallelism: false,
          },
        },
        {
          extends: true as const,
          test: {
            name: 'page',
            include: ['tests/page/**/*.test.ts'],
            environment: 'node',
            testTimeout: 60_000,
            hookTimeout: 90_000,
            fileParallelism: false,
          },
        },
      ],
    },
  };
});
