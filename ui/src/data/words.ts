// Texts out of numbers of words: what crates/formats/src/export/html/words.rs wrote, and how it is laid out.
const WORD = new Uint8Array(256).map((_, c) => Number((c >= 48 && c <= 57) || (c >= 65 && c <= 90) || (c >= 97 && c <= 122) || c >= 128));

export function readWords(bytes: Uint8Array<ArrayBuffer>): string[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const short = (): never => {
    throw new Error('a text block is incomplete');
  };
  if (bytes.byteLength < 12) short();
  const [texts, tokens, distinct] = [0, 4, 8].map((at) => view.getUint32(at, true));
  let at = 12;
  const take = (n: number): Uint8Array<ArrayBuffer> => (at + n > bytes.byteLength ? short() : bytes.subarray(at, (at += n)));
  const numbers = (n: number): Uint32Array => {
    const planes = take(4 * n);
    const out = new Uint32Array(n);
    for (let i = 0; i < n; i++) out[i] = planes[i] | (planes[n + i] << 8) | (planes[2 * n + i] << 16) | (planes[3 * n + i] << 24);
    return out;
  };
  const counts = numbers(texts);
  const lengths = numbers(distinct);
  const starts = new Float64Array(distinct + 1);
  for (let i = 0; i < distinct; i++) starts[i + 1] = starts[i] + lengths[i];
  const letters = take(starts[distinct]);
  const codes = numbers(tokens);
  // The longest text decides how much room is needed.
  let [longest, from] = [0, 0];
  for (const count of counts) {
    if (from + count > tokens) short();
    let size = 0;
    for (let i = from; i < from + count; i++) size += (lengths[codes[i]] ?? short()) + 1;
    longest = Math.max(longest, size);
    from += count;
  }
  const room = new Uint8Array(longest);
  const utf8 = new TextDecoder();
  from = 0;
  return Array.from(counts, (count) => {
    let [size, afterWord] = [0, false];
    for (let i = from; i < from + count; i++) {
      let k = starts[codes[i]];
      const end = starts[codes[i] + 1];
      const word = WORD[letters[k]] === 1;
      if (word && afterWord) room[size++] = 32;
      while (k < end) room[size++] = letters[k++];
      afterWord = word;
    }
    from += count;
    return utf8.decode(room.subarray(0, size));
  });
}
