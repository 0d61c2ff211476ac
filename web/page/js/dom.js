// Makes elements. Text becomes text nodes only: nothing that a server or a user wrote is ever parsed as markup.

const kSvg = 'http://www.w3.org/2000/svg';

/// element('button', {class: 'quiet', onclick: f}, 'Cancel'): attributes, `on…` handlers, `data` and properties that are
/// not strings; children are nodes, texts, or lists of them; null and false are left out.
export function element(name, properties = {}, ...children) {
  return filled(document.createElement(name), properties, children);
}

export function svg(name, properties = {}, ...children) {
  return filled(document.createElementNS(kSvg, name), properties, children);
}

function filled(node, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'data') Object.assign(node.dataset, value);
    else if (key === 'value') node.value = value;
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/// Replaces what `node` holds.
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/// Sets a text where it differs, so that screen readers are not told the same again.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/// A list of nodes that is updated in place, by key: focus and scroll survive an update.
export class KeyedList {
  /// `make(item)` → node; `update(node, item)` each time.
  constructor(parent, make, update) {
    this.parent = parent;
    this.make = make;
    this.update = update;
    this.nodes = new Map();
  }

  show(items, key = (item) => item.id) {
    const wanted = new Set(items.map(key));
    for (const [known, node] of this.nodes) {
      if (wanted.has(known)) continue;
      node.remove();
      this.nodes.delete(known);
    }
    let place = this.parent.firstChild;
    for (const item of items) {
      let node = this.nodes.get(key(item));
      if (!node) this.nodes.set(key(item), (node = this.make(item)));
      this.update(node, item);
      if (node === place) place = place.nextSibling;
      else this.parent.insertBefore(node, place);
    }
  }
}

/// Asks with the page's own dialog; resolves to whether it was confirmed.
export function confirmed(question, yes) {
  return new Promise((resolve) => {
    const dialog = element('dialog', {'aria-labelledby': 'question'},
      element('p', {id: 'question'}, question),
      element('form', {method: 'dialog', class: 'row'},
        element('button', {value: 'no', autofocus: true}, 'Keep it'),
        element('button', {value: 'yes', class: 'danger'}, yes)));
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'yes');
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
