// Allocations, sites and segments as tables, sorted and searched by the server.

import { computed, signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import type { Run, Table, TableOf, TableQuery } from "../protocol";
import { atEvent } from "../state/axis";
import { showAddresses, showLifetime } from "../state/focus";
import { count } from "../state/format";
import { MAX_ROWS, type Row, useRows } from "../state/pages";
import { by, interval, moment, search, selection, tab } from "../state/store";
import { Grid } from "./grid";
import { Choice, Loading, Problem, SearchField } from "./parts";

type When = "moment" | "interval" | "all";

const of = signal<TableOf>("allocations");
/** The user's choice; until then the brushed interval, if there is one. */
const chosenWhen = signal<When | null>(null);
const when = computed<When>(() => {
  const wanted = chosenWhen.value ?? (interval.value ? "interval" : "moment");
  return wanted === "interval" && !interval.value ? "moment" : wanted;
});
const sort = signal<{ key: string; descending: boolean } | null>(null);

/** The default order. */
const FIRST_SORT: Record<TableOf, string> = { allocations: "size", sites: "now", segments: "size" };

function question(run: Run, text: string): TableQuery {
  const order = sort.value ?? { key: FIRST_SORT[of.value], descending: true };
  const stretch = interval.value;
  const time = of.value !== "allocations" || when.value === "moment" ? { at: moment.value } : {};
  const during =
    of.value === "allocations" && when.value === "interval" && stretch
      ? { from: stretch.from, to: stretch.to }
      : {};
  return {
    run: run.id,
    of: of.value,
    sort: order.key,
    desc: order.descending,
    search: text,
    ...time,
    ...during,
  };
}

/** Text that has not changed for a while. */
function useSettled(text: string): string {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), 200);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}

export function TablePanel({ run }: { run: Run }) {
  const query = question(run, useSettled(search.value));
  const rows = useRows(query);
  const columns = rows.table?.columns ?? [];
  return (
    <div class="table-panel">
      <div class="toolbar">
        <Choice
          label="Rows"
          value={of.value}
          options={[
            ["allocations", "Allocations"],
            ["sites", "Sites"],
            ["segments", "Segments"],
          ]}
          onChoose={(value) => {
            of.value = value;
            sort.value = null;
          }}
        />
        {of.value === "allocations" && <Whens />}
        <Counted table={rows.table} at={rows.at} />
        <SearchField
          value={search.value}
          hint={
            of.value === "segments" ? "Search kind, pool or address" : "Search file, function or category"
          }
          onSearch={(text) => (search.value = text)}
        />
      </div>
      {rows.problem && <Problem of={rows.problem} />}
      {!rows.problem && !rows.table && <Loading />}
      {!rows.problem && rows.table && (
        <Grid
          key={JSON.stringify([run.id, of.value, when.value, query.sort, query.desc, query.search])}
          rows={rows}
          order={{ key: String(query.sort), descending: query.desc === true }}
          isChosen={isChosen}
          onSort={(key) =>
            (sort.value = { key, descending: query.sort === key ? !query.desc : isNumber(columns, key) })
          }
          onChoose={(row) => choose(row, columns)}
          onOpen={(row) => open(run, row, columns)}
        />
      )}
    </div>
  );
}

function Whens() {
  const options: [When, string][] = [["moment", "Live at the moment"]];
  if (interval.value) options.push(["interval", "In the brushed interval"]);
  options.push(["all", "All"]);
  return (
    <Choice
      label="When"
      value={when.value}
      options={options}
      onChoose={(chosen) => (chosenWhen.value = chosen)}
    />
  );
}

function Counted({ table, at }: { table: Table | null; at: number | null }) {
  if (!table) return <p class="said" />;
  const { total, of: whole } = table;
  return (
    <p class="said">
      {total === whole ? count(total) : `${count(total)} of ${count(whole)}`}
      {at !== null && at !== moment.value && `, ${atEvent(at)} (nearest exported moment)`}
      {total > MAX_ROWS &&
        `; the first ${count(MAX_ROWS)} are listed: sort the other way or search to see the rest`}
    </p>
  );
}

const isNumber = (columns: Table["columns"], key: string) =>
  columns.find((column) => column.key === key)?.kind !== "text";

function isChosen(row: Row): boolean {
  const chosen = selection.value;
  if (of.value === "allocations") return chosen?.kind === "block" && chosen.row === row[0];
  return of.value === "sites" && chosen?.kind === "group" && chosen.by === "site" && chosen.id === row[0];
}

function choose(row: Row, columns: Table["columns"]): void {
  const id = Number(row[0]);
  if (of.value === "allocations") selection.value = { kind: "block", row: id };
  else if (of.value === "sites") {
    by.value = "site";
    selection.value = { kind: "group", by: "site", id };
  } else {
    const size = Number(row[1 + columns.findIndex((column) => column.key === "size")]);
    showAddresses(id, id + size);
  }
}

/** Opens a block on the timeline, or a segment in the map. */
function open(run: Run, row: Row, columns: Table["columns"]): void {
  choose(row, columns);
  if (of.value === "allocations") void showLifetime(run, Number(row[0]));
  else if (of.value === "segments") tab.value = "map";
}
