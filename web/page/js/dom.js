// Makes elements. Text becomes text nodes only: nothing that a server or a user wrote is ever parsed as markup.

const kSvg = 'http://www.w3.org/2000/svg';

/// element('button', {class: 'main', onclick: f}, 'Paint'): attributes, a control's value and `on…` handlers; then
/// children: nodes, texts, or lists of them; null and false are left out.
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
    else if (key === 'value') node.value = value;
    else node.setAttribute(key, value === true ? '' : value);
  }
  return fill(node, children);
}

/// Replaces what `node` holds.
export function fill(node, ...children) {
  const there = (child) => child !== null && child !== undefined && child !== false;
  node.replaceChildren(...children.flat(Infinity).filter(there));
  return node;
}

/// A part of a view with a title; `actions` stand beside it.
export function panel(title, actions, ...children) {
  const id = `title-${title.toLowerCase().replace(/\W+/g, '-')}`;
  return element('section', {class: 'panel', 'aria-labelledby': id},
    element('div', {class: 'panel-head'}, element('h2', {id}, title), actions), children);
}

/// A text that is only heard.
export function unseen(text) {
  return element('span', {class: 'unseen'}, text);
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

/// A table whose rows are updated in place. `columns`: {head, number}; `make(cells, item)` fills the cells of a new row
/// and returns `update(item)`. On a narrow screen a row becomes a block that names its columns.
export class Table {
  constructor(columns, make) {
    this.columns = columns;
    this.make = make;
    this.body = element('tbody');
    const heads = columns.map(({head, number}) =>
      element('th', {scope: 'col', class: number && 'number'}, head || unseen('Action')));
    this.node = element('div', {class: 'table-box'},
      element('table', {}, element('thead', {}, element('tr', {}, heads)), this.body));
    this.updates = new Map();
    this.rows = new KeyedList(this.body, (item) => this.makeRow(item), (row, item) => this.updates.get(row)(item));
  }

  makeRow(item) {
    const cells = this.columns.map(({head, number}) => element('td', {'data-head': head, class: number && 'number'}));
    const row = element('tr', {}, cells);
    this.updates.set(row, this.make(cells, item));
    return row;
  }

  show(items) {
    this.rows.show(items);
    for (const row of this.updates.keys())
      if (!row.isConnected) this.updates.delete(row);
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
