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
