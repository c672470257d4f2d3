// Arrays of bytes in numpy's file format, version 1.0.

const MAGIC = [0x93, ...new TextEncoder().encode("NUMPY"), 1, 0];
const ALIGNED = 64; // the header ends at a multiple of it

/** The file of images, each a list of values from 0 to 255, all of one shape. */
export function npyOf(images, shape) {
  const sizes = [images.length, ...shape].join(", ");
  const facts = `{'descr': '|u1', 'fortran_order': False, 'shape': (${sizes}), }`;
  const before = MAGIC.length + 2;
  const padding = (ALIGNED - ((before + facts.length + 1) % ALIGNED)) % ALIGNED;
  const header = new TextEncoder().encode(`${facts}${" ".repeat(padding)}\n`);
  const head = Uint8Array.from([...MAGIC, header.length & 0xff, header.length >> 8]);
  return new Blob([head, header, ...images.map((image) => Uint8Array.from(image))]);
}
