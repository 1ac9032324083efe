import js from '@eslint/js';
import svelte from 'eslint-plugin-svelte';
import { defineConfig, globalIgnores } from 'eslint/config';
import globals from 'globals';
import ts from 'typescript-eslint';
import svelteConfig from './svelte.config.js';

export default defineConfig(
  globalIgnores(['dist', 'dist-static', 'artifacts', 'src/generated']),
  js.configs.recommended,
  ts.configs.recommended,
  svelte.configs.recommended,
  // Prettier owns the layout.
  svelte.configs.prettier,
  { languageOptions: { globals: { ...globals.browser, ...globals.node } } },
  {
    files: ['**/*.svelte', '**/*.svelte.ts'],
    languageOptions: { parserOptions: { extraFileExtensions: ['.svelte'], parser: ts.parser, svelteConfig } },
  },
  {
    rules: {
      eqeqeq: 'error',
      // Maps and sets of this code are built in one go inside a derived value; none is changed after it is shown.
      'svelte/prefer-svelte-reactivity': 'off',
      // TypeScript knows better which names there are.
      'no-undef': 'off',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_' }],
      '@typescript-eslint/consistent-type-imports': 'error',
    },
  },
);
