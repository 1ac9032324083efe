import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { ArrowError, readStream, rows, typeText } from '../../src/data/arrow';

const load = (name: string): Uint8Array => new Uint8Array(readFileSync(new URL(`../fixtures/${name}.arrow`, import.meta.url)));

describe('what pyarrow writes', () => {
  const stream = readStream(load('types'));
  const [a, b, c] = rows(stream);

  it('numbers, with nulls and limits', () => {
    expect([a.i8, b.i8, c.i8]).toEqual([1, null, -3]);
    expect([a.u16, b.u16, c.u16]).toEqual([1, 65535, null]);
    expect([a.i32, b.i32, c.i32]).toEqual([-1, 0, 2 ** 31 - 1]);
    expect([a.i64, b.i64, c.i64]).toEqual([-(2n ** 63n), null, 2n ** 63n - 1n]);
    expect([a.u64, b.u64, c.u64]).toEqual([0n, 2n ** 64n - 1n, null]);
    expect([a.f16, b.f16, c.f16]).toEqual([1.5, -2, null]);
    expect([a.f32, b.f32, c.f32]).toEqual([0.5, null, Infinity]);
    expect([a.f64, b.f64, c.f64]).toEqual([0.1, NaN, null]);
    expect([a.flag, b.flag, c.flag]).toEqual([true, null, false]);
    expect([a.nothing, c.nothing]).toEqual([null, null]);
    expect([a.decimal, b.decimal, c.decimal]).toEqual(['-12.345', '0.001', null]);
  });
  it('text and bytes of every kind', () => {
    expect([a.text, b.text, c.text]).toEqual(['a', null, 'ä中😀<script>']);
    expect([a.large_text, b.large_text, c.large_text]).toEqual(['x', '', null]);
    expect([a.view, b.view, c.view]).toEqual(['short', 'a text longer than twelve bytes', null]);
    expect([a.bytes, b.bytes, c.bytes]).toEqual(['00ff', null, '']);
    expect([a.id, b.id, c.id]).toEqual(['0001020304050607', null, 'ffffffffffffffff']);
    expect([a.dict, b.dict, c.dict]).toEqual(['red', null, 'red']);
    expect([a.dict8, b.dict8, c.dict8]).toEqual(['q', 'p', null]);
  });
  it('nested values', () => {
    expect([a.list, b.list, c.list]).toEqual([[1, 2], null, []]);
    expect([a.fixed_list, b.fixed_list, c.fixed_list]).toEqual([[1, 2], [3, 4], null]);
    expect([a.struct, b.struct, c.struct]).toEqual([{ a: 1, b: 'x' }, { a: null, b: 'y' }, null]);
    expect(Object.entries(a.map as object)).toEqual([
      ['k', '1'],
      ['__proto__', '2'],
    ]);
    const [event] = a.events as { time_ns: bigint; name: string; attrs: Record<string, string> }[];
    expect([event.time_ns, event.name, event.attrs.k]).toEqual([5n, 'e', 'true']);
  });
  it('times', () => {
    expect([a.date, b.date, c.date]).toEqual(['2026-11-15', null, '1969-12-31']);
    expect([a.stamp, b.stamp]).toEqual(['2023-11-14T22:13:20.123456789Z', '1969-12-31T23:59:59.999999999Z']);
    expect([a.seconds, c.seconds]).toEqual(['2023-11-14T22:13:20Z', '1970-01-01T00:00:00Z']);
  });
  it('names types for people', () => {
    const types = Object.fromEntries(stream.fields.map((f) => [f.name, typeText(f)]));
    expect(types).toMatchObject({ i64: 'int64', dict: 'dict<utf8>', id: 'binary(8)', list: 'list<int32>', struct: 'struct<a, b>', map: 'map' });
  });
});

it('reads a stream without batches', () => {
  const stream = readStream(load('empty'));
  expect(stream.fields.length).toBeGreaterThan(20);
  expect(stream.batches).toEqual([]);
});

it('keeps the dictionary that was valid when a batch came', () => {
  expect(rows(readStream(load('replaced'))).map((r) => r.color)).toEqual(['a', 'b', 'b', 'c', 'd', 'a']);
  expect(rows(readStream(load('delta'))).map((r) => r.color)).toEqual(['a', 'b', 'c']);
});

describe('bad input', () => {
  it('says that it cannot read a compressed body', () => {
    expect(() => readStream(load('compressed'))).toThrow(/compressed/);
  });
  it('refuses what is no stream', () => {
    expect(() => readStream(new Uint8Array(0))).toThrow(ArrowError);
    expect(() => readStream(new TextEncoder().encode('{"detail":"no such run"}'))).toThrow(ArrowError);
  });
  it('refuses a stream cut anywhere', () => {
    const whole = load('types');
    for (let n = 4; n < whole.length; n += 12) expect(() => readStream(whole.slice(0, n)), `cut at ${n}`).toThrow(ArrowError);
  });
  it('never throws anything but ArrowError on flipped bytes', () => {
    const whole = load('types');
    for (let i = 0; i < whole.length; i += 3) {
      const bad = whole.slice();
      bad[i] ^= 0xff;
      try {
        rows(readStream(bad));
      } catch (e) {
        if (!(e instanceof ArrowError)) throw new Error(`byte ${i}`, { cause: e });
      }
    }
  });
  it('reads from an address that is not aligned', () => {
    const whole = load('types');
    const shifted = new Uint8Array(whole.length + 3);
    shifted.set(whole, 3);
    expect(rows(readStream(shifted.subarray(3)))[2].i64).toBe(2n ** 63n - 1n);
  });
});
