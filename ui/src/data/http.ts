import { SourceError } from '../base/errors';

/** JSON from the server, or an error in its words. */
export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, { signal, credentials: 'same-origin', headers: { accept: 'application/json' } });
  } catch (e) {
    if ((e as Error).name === 'AbortError') throw e;
    throw new SourceError('The server does not answer', 'Is `rollscope serve` still running?');
  }
  const text = await response.text();
  let body: unknown = null;
  try {
    body = JSON.parse(text);
  } catch {
    // Then the text is all there is.
  }
  if (response.ok) return body as T;
  const problem = (body ?? {}) as { title?: string; detail?: string; error?: string };
  throw new SourceError(
    problem.title ?? `${response.status} ${response.statusText}`,
    problem.detail ?? problem.error ?? text.slice(0, 2000),
    response.status,
  );
}
