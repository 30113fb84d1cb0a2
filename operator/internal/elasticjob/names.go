// Package elasticjob translates between ElasticJobs and the engine: a spec into roles, pods into what the engine
// observes, its creations into pods, its memory into a status and back. It does no I/O.
package elasticjob

import (
	"fmt"
	"strconv"

	"phalanx/operator/api/v1alpha1"
)

// Labels and values by which DLRover's tools, and people, find pods.
const (
	LabelName     = "elasticjob.dlrover/name"
	labelRole     = "elasticjob.dlrover/replica-type"
	labelID       = "elasticjob.dlrover/replica-index"
	labelRank     = "elasticjob.dlrover/rank-index"
	labelRelaunch = "elasticjob.dlrover/relaunch-count"
	labelApp      = "app"
	labelAppName  = "app.kubernetes.io/name"

	appOfWorkers = "dlrover"
	appOfMaster  = "elasticjob"
)

// AnnotationEnds is how the pods of a rank before this one have ended, as "Application=1,Killed=2". What a relaunch
// costs is written by the same request that carries it out.
const AnnotationEnds = "phalanx.elasticjob/ends"

// annotationUnbegun is how many pods of the rank just before this one have failed and had not begun, as where a kubelet
// refuses them: the next one waits the longer.
const annotationUnbegun = "phalanx.elasticjob/unbegun"

// annotationAvoids names the hosts that the pod is kept off, with commas between them, though no template says so.
const annotationAvoids = "phalanx.elasticjob/avoids"

// MasterPort is where the job's master listens.
const MasterPort = 50001

// PodName is that of the pod of a role with an id.
func PodName(job, role string, id int32) string {
	if role == v1alpha1.ReplicaTypeMaster {
		return fmt.Sprintf("elasticjob-%s-%s-%d", job, role, id)
	}
	return fmt.Sprintf("%s-edljob-%s-%d", job, role, id)
}

// MasterService is the name of the service of a job's master.
func MasterService(job string) string { return "elasticjob-" + job + "-" + v1alpha1.ReplicaTypeMaster }

// TokenSecret is the name of the secret with the job's token, and TokenKey where it stands in there.
func TokenSecret(job string) string { return "elasticjob-" + job + "-token" }

// TokenKey is the key within TokenSecret.
const TokenKey = "token"

func masterLabels(job string) map[string]string {
	return map[string]string{labelAppName: appOfMaster, LabelName: job, labelRole: v1alpha1.ReplicaTypeMaster}
}

// WorkerSelector finds the worker pods of a job, in the form of the scale subresource.
func WorkerSelector(job string) string {
	return fmt.Sprintf("%s=%s,%s=%s", LabelName, job, labelRole, v1alpha1.ReplicaTypeWorker)
}

func text(number int32) string { return strconv.FormatInt(int64(number), 10) }
