// Bytes out of the text inside an element: seven bits a character, the first bits first. Characters that HTML or a
// conversion of line ends would change stand as two: an escape, and the character 64 further. Written by
// crates/formats/src/export/html/ascii.rs.
const ESCAPE = 0x1b;

export function fromAscii(text: string): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(Math.floor((text.length * 7) / 8));
  let [at, pending, bits] = [0, 0, 0];
  for (let i = 0; i < text.length; i++) {
    let c = text.charCodeAt(i);
    if (c === ESCAPE) c = text.charCodeAt(++i) - 64;
    // Also what is no number, at the end of a text that was cut off.
    if (!(c >= 0 && c < 128)) throw new Error('a data block contains an unexpected character');
    pending = ((pending << 7) | c) & 0x7fff;
    bits += 7;
    if (bits >= 8) {
      bits -= 8;
      out[at++] = pending >> bits;
    }
  }
  return out.slice(0, at);
}
