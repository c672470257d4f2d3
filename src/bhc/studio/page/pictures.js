// Images as plain numbers: fetched, painted on a canvas, read back.

import { service } from "./service.js";

const fetched = new Map();

/** The raw values of an example picture, channels outermost as the network takes them. */
export function picture(model, label, number) {
  const key = `${label}/${number}`;
  if (!fetched.has(key)) fetched.set(key, service.picture(label, number).then((bitmap) => values(bitmap, model)));
  return fetched.get(key);
}

/** Paints an image of any shape (channels, rows, columns) on a canvas. */
export function paint(canvas, image, model) {
  const [channels, rows, columns] = model.image_shape;
  const size = rows * columns;
  const gain = 255 / fullScale(model);
  canvas.width = columns;
  canvas.height = rows;
  const pixels = new ImageData(columns, rows);
  for (let place = 0; place < size; place += 1) {
    for (let colour = 0; colour < 3; colour += 1) {
      pixels.data[4 * place + colour] = image[(channels === 3 ? colour : 0) * size + place] * gain;
    }
    pixels.data[4 * place + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** The largest value of a pixel. */
export function fullScale(model) {
  return model.full_scale ?? model.forms.domain?.full_scale ?? 255;
}

function values(bitmap, model) {
  const [channels, rows, columns] = model.image_shape;
  const canvas = new OffscreenCanvas(columns, rows);
  const brush = canvas.getContext("2d", { willReadFrequently: true });
  brush.drawImage(bitmap, 0, 0);
  const { data } = brush.getImageData(0, 0, columns, rows);
  return Array.from({ length: channels * rows * columns }, (_, place) => {
    const channel = Math.floor(place / (rows * columns));
    return data[4 * (place % (rows * columns)) + channel];
  });
}
