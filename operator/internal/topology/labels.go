package topology

import (
	"strconv"
	"strings"
)

// Labels of a pod about the place of its node. The names are DLRover's, whose code says rack-group-num where its pages
// say rack-group-size.
const (
	LabelGroup     = "scheduling/rack-group"      // the number of its access switch, from 0
	LabelGroupNum  = "scheduling/rack-group-num"  // how many access switches there are
	LabelGroupSize = "scheduling/rack-group-size" // the same
	LabelRack      = "scheduling/rack-id"         // the name of its access switch
)

// AnnotationPath of a pod is the way to its node: pod switch, access switch and address, as psw-0/asw-1/192.168.0.1. A
// pod that has it has its labels from here, too.
const AnnotationPath = "phalanx.elasticjob/topology"

// labels are those that belong together.
var labels = []string{LabelGroup, LabelGroupNum, LabelGroupSize, LabelRack}

// Change is what of a pod's metadata is to be written. A nil value is to be removed.
type Change struct {
	Labels      map[string]*string `json:"labels,omitempty"`
	Annotations map[string]*string `json:"annotations,omitempty"`
}

// Change says what a pod lacks, given its labels, its annotations and the addresses of its node; false: nothing. Labels
// that a user or a scheduler has put are theirs, and stay.
func (t *Table) Change(has, annotated map[string]string, addresses ...string) (Change, bool) {
	path, ours := annotated[AnnotationPath]
	if !ours {
		for _, label := range labels {
			if _, theirs := has[label]; theirs {
				return Change{}, false
			}
		}
	}
	wanted, wantedPath := t.wanted(addresses)
	if wantedPath == "" && !ours {
		return Change{}, false
	}
	change := Change{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	for _, label := range labels {
		put(change.Labels, has, label, wanted[label])
	}
	if path != wantedPath || !ours {
		put(change.Annotations, annotated, AnnotationPath, wantedPath)
	}
	return change, len(change.Labels)+len(change.Annotations) > 0
}

func (t *Table) wanted(addresses []string) (map[string]string, string) {
	place, address, known := t.Find(addresses...)
	if !known {
		return nil, ""
	}
	groups := strconv.Itoa(t.groups)
	path := strings.Join([]string{place.PodSwitch, place.AccessSwitch, address.String()}, "/")
	return map[string]string{
		LabelGroup: strconv.Itoa(place.Group), LabelGroupNum: groups, LabelGroupSize: groups, LabelRack: place.AccessSwitch,
	}, path
}

// put writes down that a value is to become another; empty: none.
func put(change map[string]*string, has map[string]string, key, wanted string) {
	value, there := has[key]
	switch {
	case wanted == "" && there:
		change[key] = nil
	case wanted != "" && value != wanted:
		change[key] = &wanted
	}
}
