package elasticjob

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"phalanx/operator/api/v1alpha1"
)

// unheeded are annotations that DLRover's operator hands to its master as flags: what to do here instead, and the
// values that ask for nothing else.
var unheeded = map[string]struct {
	instead  string
	harmless []string
}{
	"pending_timeout":       {"phalanx-run --rdzv-conf=join_timeout=S, and the operator's --start-blocked-for", nil},
	"pending_fail_strategy": {"the job trains with --nnodes' minimum, and waits for pods that are pending", nil},
	"service_type":          {"the master speaks gRPC", []string{"grpc"}},
	"pre_check_ops":         {"phalanx-run --precheck checks nodes", []string{"None", "none", "[]"}},
	"pre_check_bypass":      {"nodes are checked where phalanx-run has --precheck, and nowhere else", nil},
	"training_elastic_mode": {"phalanx-run --nnodes=MIN:MAX is elastic", []string{"base", "ucp"}},
	"enable_dashboard":      {"there is none; phalanx status shows a job", []string{"false", "False", "0"}},
	"dashboard_port":        {"there is none; phalanx status shows a job", nil},
}

// Unheeded says of a job's annotations which have no effect, though DLRover would heed them; empty: none.
func Unheeded(job *v1alpha1.ElasticJob) string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(unheeded)) {
		value, given := job.Annotations[name]
		if given && !slices.Contains(unheeded[name].harmless, value) {
			found = append(found, fmt.Sprintf("annotation %s=%q has no effect: %s", name, value, unheeded[name].instead))
		}
	}
	return strings.Join(found, "; ")
}
