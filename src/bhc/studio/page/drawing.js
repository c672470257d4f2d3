// A digit drawn by hand, brought into the form that the network was trained on.

const PAD = 280; // pixels of the canvas, along both sides
const STROKE = 20;
const BOX = 20 / 28; // of a side: MNIST's digits fill a box of 20, centred by their mass

/** Makes a canvas to draw on; `changed` is called whenever the drawing changed. */
export function drawingPad(canvas, changed) {
  canvas.width = canvas.height = PAD;
  const brush = canvas.getContext("2d", { willReadFrequently: true });
  let last = null;
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * PAD, ((event.clientY - box.top) / box.height) * PAD];
  };
  const stroke = (event) => {
    const next = point(event);
    brush.strokeStyle = "#fff";
    brush.lineWidth = STROKE;
    brush.lineCap = brush.lineJoin = "round";
    brush.beginPath();
    brush.moveTo(...(last ?? next));
    brush.lineTo(...next);
    brush.stroke();
    last = next;
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = null;
    stroke(event);
    changed();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!canvas.hasPointerCapture(event.pointerId)) return;
    for (const part of event.getCoalescedEvents?.() ?? [event]) stroke(part);
    changed();
  });
  return {
    clear: () => brush.clearRect(0, 0, PAD, PAD),
    ink: (sides) => normalised(brush, sides),
  };
}

/** The drawing scaled into its box and centred by its mass, row by row up to 255; null where nothing is drawn. */
function normalised(brush, [rows, columns]) {
  const { data } = brush.getImageData(0, 0, PAD, PAD);
  const ink = measure(data);
  if (ink === null) return null;
  const small = new OffscreenCanvas(columns, rows).getContext("2d", { willReadFrequently: true });
  const scale = (BOX * Math.min(rows, columns)) / Math.max(ink.right - ink.left, ink.bottom - ink.top);
  small.imageSmoothingQuality = "high";
  small.translate(columns / 2 - ink.x * scale, rows / 2 - ink.y * scale);
  small.scale(scale, scale);
  small.drawImage(brush.canvas, 0, 0);
  const pixels = small.getImageData(0, 0, columns, rows).data;
  return Array.from({ length: rows * columns }, (_, place) => pixels[4 * place + 3]);
}

/** Bounding box and centre of mass of what is opaque. */
function measure(data) {
  let [left, top, right, bottom, mass, x, y] = [PAD, PAD, 0, 0, 0, 0, 0];
  for (let place = 0; place < PAD * PAD; place += 1) {
    const weight = data[4 * place + 3];
    if (weight < 8) continue;
    const [row, column] = [Math.floor(place / PAD), place % PAD];
    left = Math.min(left, column);
    right = Math.max(right, column + 1);
    top = Math.min(top, row);
    bottom = Math.max(bottom, row + 1);
    mass += weight;
    x += weight * (column + 0.5);
    y += weight * (row + 0.5);
  }
  return mass === 0 ? null : { left, top, right, bottom, x: x / mass, y: y / mass };
}
