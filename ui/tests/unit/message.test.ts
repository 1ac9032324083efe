// One message of a conversation as it is drawn. What a model wrote must not stop the page from being shown.
import { render } from 'svelte/server';
import { beforeAll, expect, it, vi } from 'vitest';
import type { Message } from '../../src/data/conversations';

let draw: (message: Message) => Promise<string>;
beforeAll(async () => {
  vi.stubGlobal('matchMedia', () => ({ matches: false, addEventListener: () => undefined }));
  vi.stubGlobal('location', { hash: '' });
  vi.stubGlobal('document', { getElementById: () => null });
  const { default: View } = await import('../../src/features/conversations/Message.svelte');
  draw = async (message) => {
    const props = { message, number: 3, strips: [], run: 'r', step: 1, current: false, href: '#' };
    const { body } = await render(View, { props, transformError: (error) => error });
    return body.replace(/<!--.*?-->/g, '');
  };
});

it('is drawn with its formatting, whatever its role is called', async () => {
  expect(await draw({ role: 'user', content: 'a **b**' })).toContain('<strong>b</strong>');
  const html = await draw({ role: 'constructor', content: 'a' });
  expect(html).toContain('<article class="other ');
  expect(html).toMatch(/class="who[^>]*>constructor</);
});

it('is text where formatting it fails', async () => {
  const message = {
    role: 'user',
    content: 'a **b**',
    get reasoning_content(): string {
      throw new Error('odd');
    },
  };
  const html = await draw(message);
  expect(html).toContain('This message could not be formatted (odd)');
  expect(html).toContain('a **b**');
  expect(html).toContain('data-message="3"');
});

it('may call a tool with arguments that are nested more deeply than can be written', async () => {
  const deep = `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`;
  expect(await draw({ role: 'assistant', tool_calls: [{ name: 'f', arguments: deep }] })).toContain('(nested too deeply)');
});
