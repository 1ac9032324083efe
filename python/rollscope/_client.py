"""Reads from a server: SQL and conversations."""

from __future__ import annotations

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class RequestError(Exception):
    """The server refused a request. Carries the server's message and the HTTP status."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Result:
    """The result of a query: rows as tuples or, on demand, an Arrow table or a data frame."""

    def __init__(self, client: Client, query: str, answer: dict[str, Any]):
        self._client = client
        self._query = query
        columns = answer.get("columns", [])
        self.columns: list[str] = [c["name"] if isinstance(c, dict) else c for c in columns]
        self.rows: list[tuple[Any, ...]] = [tuple(row) for row in answer.get("rows", [])]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_arrow(self) -> Any:
        """A `pyarrow.Table`; needs pyarrow."""
        import pyarrow

        return pyarrow.ipc.open_stream(self._client._sql(self._query, "arrow")).read_all()

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`; needs pandas and pyarrow."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """A `polars.DataFrame`; needs polars and pyarrow."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def __repr__(self) -> str:
        return f"Result({len(self.rows)} rows of {', '.join(self.columns)})"


class Client:
    """Queries a server: `Client("http://127.0.0.1:7200").sql("select * from runs")`."""

    def __init__(self, url: str = "http://127.0.0.1:7200", token: str | None = None, timeout: float = 60.0):
        import os

        self.url = url.rstrip("/")
        self.timeout = timeout
        self._token = token or os.environ.get("ROLLSCOPE_TOKEN")

    def _request(self, path: str, body: Any = None, method: str | None = None) -> bytes:
        import json
        import urllib.error
        import urllib.request

        headers = {"accept": "*/*"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                read: bytes = answer.read()
                return read
        except urllib.error.HTTPError as error:
            said = error.read(65536)
            try:
                problem = json.loads(said)
                text = problem.get("detail") or problem.get("title") or str(problem)
            except ValueError:
                text = said.decode("utf-8", "replace")[:500] or str(error.reason)
            raise RequestError(text, error.code) from None

    def _sql(self, query: str, format: str) -> bytes:
        return self._request("/api/v1/sql", {"query": query, "format": format})

    def sql(self, query: str) -> Result:
        """Runs read-only SQL. The result has rows, and `.to_arrow()`, `.to_pandas()` and `.to_polars()`."""
        import json

        return Result(self, query, json.loads(self._sql(query, "json")))

    def get_traces(
        self,
        project: str | None = None,
        run: str | None = None,
        run_id: str | None = None,
        search: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """Returns the conversations that match, all of them unless you set a `limit`.

        `run` is a run's name or id. `sort` is a column or `metadata.FIELD`, with `-` before it for descending:
        `"-metadata.reward"`, `"step"`.
        """
        import json
        from urllib.parse import quote, urlencode

        asked = {"project": project, "run": run, "run_id": run_id, "search": search, "sort": sort, "offset": offset or None}
        found: list[dict[str, Any]] = []
        left: Any = limit
        while True:
            # A bad limit goes as it is: the server says what is wrong with it.
            asked["limit"] = min(left, _PAGE) if isinstance(left, int) else (_PAGE if left is None else left)
            query = urlencode({k: v for k, v in asked.items() if v is not None}, quote_via=quote)
            answer = json.loads(self._request(f"/api/v1/conversations?{query}"))
            page = [_trace(row) for row in answer["conversations"]]
            found += page
            left = left - len(page) if isinstance(left, int) else left
            if not page or not answer.get("next") or (isinstance(left, int) and left <= 0):
                return found
            asked["cursor"], asked["offset"] = answer["next"], None

    def trace_level(self, level: int | None) -> None:
        """Sets the recording level of every process that sends to this server. `None` lets each process choose."""
        self._request("/api/v1/trace-level", {"level": level}, "PUT")


#: The largest page that the server returns.
_PAGE = 1000


def _trace(row: dict[str, Any]) -> dict[str, Any]:
    """Decodes messages and metadata that the server sent as text."""
    import json

    for key in ("messages", "metadata"):
        if isinstance(row.get(key), str):
            row[key] = json.loads(row[key])
    return row
