// Pictures of examples: fetched once, painted on a canvas, read back as values.

import { service } from "./service.js";

const fetched = new Map();

/** The pixels of a picture of a class, as the canvas has them; of the sample as a whole where it has no classes. */
export function picture({ label, number }) {
  const key = `${label ?? 0}/${number}`;
  if (!fetched.has(key)) fetched.set(key, service.picture(label ?? 0, number).then(pixelsOf));
  return fetched.get(key);
}

/** The pixels of a PNG file in base64. */
export function decoded(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return createImageBitmap(new Blob([bytes], { type: "image/png" })).then(pixelsOf);
}

/** Paints pixels on a canvas of their size, so many times as bright. */
export function paint(canvas, { width, height, data }, gain = 1) {
  set(canvas, width, height);
  const pixels = new ImageData(width, height);
  pixels.data.set(data.map((value, at) => (at % 4 === 3 ? 255 : Math.min(255, value * gain))));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** Grey values, row by row, as pixels. */
export function greys(values, [height, width]) {
  return { width, height, data: Uint8ClampedArray.from({ length: 4 * width * height }, (_, at) => values[at >> 2]) };
}

/** Pictures of pixels are as dark as these are stored; others are stretched already. */
export function gainOf(model) {
  return model.inputs.takes[0].dtype === "uint8" ? 255 / model.full_scale : 1;
}

/** Rows and columns of an image, whether its one channel has an axis or not. */
export function sidesOf({ inputs: { shape } }) {
  const channel = shape.length === 3 ? shape.indexOf(1) : -1;
  return shape.filter((_, axis) => axis !== channel);
}

/** The values of an input, channels outermost, where pictures have them. */
export function valuesOf({ width, height, data }, [channels]) {
  return Array.from({ length: channels * width * height }, (_, place) => {
    const channel = Math.floor(place / (width * height));
    return data[4 * (place % (width * height)) + channel];
  });
}

function set(canvas, width, height) {
  canvas.width = width;
  canvas.height = height;
}

function pixelsOf(bitmap) {
  const brush = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d", { willReadFrequently: true });
  brush.drawImage(bitmap, 0, 0);
  return brush.getImageData(0, 0, bitmap.width, bitmap.height);
}
