package main

import (
	"context"
	"runtime/metrics"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
)

// meter counts the bytes that the queries of rules allocate. Most of what an engine does grows with them, its garbage
// collector above all, and unlike time they are alike each time, whoever else uses the machine.
type meter struct {
	// Since they were last asked for, by rule.
	bytes map[string]uint64
	read  []metrics.Sample
}

func newMeter() *meter {
	return &meter{bytes: map[string]uint64{}, read: []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}}
}

// around counts what each call of a query function allocates. Nothing else may allocate at the same time.
func (m *meter) around(query rules.QueryFunc) rules.QueryFunc {
	return func(ctx context.Context, expression string, at time.Time) (promql.Vector, error) {
		before := m.allocated()
		result, err := query(ctx, expression, at)
		m.bytes[key(rules.FromOriginContext(ctx))] += m.allocated() - before
		return result, err
	}
}

// taken returns what a rule's queries allocated since the last call for it.
func (m *meter) taken(rule rules.Rule) uint64 {
	name := key(rules.NewRuleDetail(rule))
	bytes := m.bytes[name]
	delete(m.bytes, name)
	return bytes
}

func (m *meter) allocated() uint64 {
	metrics.Read(m.read)
	return m.read[0].Value.Uint64()
}

func key(rule rules.RuleDetail) string {
	return rule.Name + rule.Labels.String() + rule.Query
}
