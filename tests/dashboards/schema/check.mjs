// Check dashboards against the types that Grafana publishes: node check.mjs NODE_MODULES FILE.json...
//
// The types become JSON schemas that allow no property they do not name: those of a dashboard and its panels, and for
// each kind of panel those of its options and of its fields. Prints one line for each thing that is wrong.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';

const [modules, ...files] = process.argv.slice(2);
const need = createRequire(resolve(modules, 'x.js'));
const { createGenerator } = need('ts-json-schema-generator');
const Ajv = need('ajv').default;

const dist = join(resolve(modules), '@grafana', 'schema', 'dist');
const kinds = {
  timeseries: 'TimeSeries',
  stat: 'Stat',
  heatmap: 'Heatmap',
  table: 'Table',
  'state-timeline': 'StateTimeline',
};
const folder = { 'state-timeline': 'statetimeline' };

const known = new Map();
function validator(path, type) {
  const key = `${path} ${type}`;
  if (!known.has(key)) {
    const schema = createGenerator({ path, type, skipTypeCheck: true }).createSchema(type);
    known.set(key, new Ajv({ allErrors: true, strict: false }).compile(schema));
  }
  return known.get(key);
}

const board = join(dist, 'types', 'raw', 'dashboard', 'x', 'types.gen.d.ts');
const panels = (kind) =>
  join(dist, 'esm', 'raw', 'composable', folder[kind] ?? kind, 'panelcfg', 'x', `${kinds[kind]}PanelCfg_types.gen.d.ts`);

// What a data source adds to an annotation is its own affair; for Prometheus, these, and its query as the target.
function plain({ titleFormat, textFormat, target, ...annotation }) {
  return annotation;
}

let wrong = 0;
function check(where, validate, value) {
  if (validate(value)) return;
  for (const error of validate.errors) {
    wrong += 1;
    console.log(`${where}${error.instancePath}: ${error.message} ${JSON.stringify(error.params)}`);
  }
}

for (const file of files) {
  const dashboard = JSON.parse(readFileSync(file, 'utf8'));
  const name = basename(file);
  // Panels one by one: of a list of alternatives, a validator tells everything that is wrong with each.
  const annotations = { list: (dashboard.annotations.list ?? []).map(plain) };
  check(name, validator(board, 'Dashboard'), { ...dashboard, annotations, panels: [] });
  for (const panel of dashboard.panels) {
    const where = `${name}, ${panel.title}`;
    check(where, validator(board, panel.type === 'row' ? 'RowPanel' : 'Panel'), panel);
    if (panel.type === 'row') continue;
    check(`${where}, options`, validator(panels(panel.type), 'Options'), panel.options);
    const custom = panel.fieldConfig.defaults.custom;
    if (custom !== undefined) check(`${where}, fields`, validator(panels(panel.type), 'FieldConfig'), custom);
  }
}
process.exit(wrong ? 1 : 0);
