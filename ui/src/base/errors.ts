/** An error with a title and a detail for people. Where a server sent it, both are in the server's words. */
export class SourceError extends Error {
  constructor(
    readonly title: string,
    readonly detail: string,
    readonly status = 0,
  ) {
    super(detail || title);
  }
}

/** Statuses of the 4xx that depend on more than the question: what is not there may come, and a busy server may have time later. */
const MAY_CHANGE = [404, 408, 425, 429];

/** The question itself was refused. Asked again, it would be refused again. */
export const isRefusal = (e: Error | null): boolean =>
  e instanceof SourceError && e.status >= 400 && e.status < 500 && !MAY_CHANGE.includes(e.status);
