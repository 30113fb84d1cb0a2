package elasticjob

import (
	"testing"

	"phalanx/operator/api/v1alpha1"
)

func TestAnnotationsThatHaveNoEffectAreSaidSo(t *testing.T) {
	job := &v1alpha1.ElasticJob{}
	job.Annotations = map[string]string{
		"pre_check_ops": "None", "enable_dashboard": "false", "team": "vision", "service_type": "http; reboot",
		"pending_timeout": "600",
	}
	const want = `annotation pending_timeout="600" has no effect: phalanx-run --rdzv-conf=join_timeout=S, and the ` +
		`operator's --start-blocked-for; annotation service_type="http; reboot" has no effect: the master speaks gRPC`
	if got := Unheeded(job); got != want {
		t.Errorf("said: %s", got)
	}
}
