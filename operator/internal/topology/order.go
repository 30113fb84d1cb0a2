package topology

import (
	"cmp"
	"slices"
)

// Node is one that takes part in a job.
type Node struct {
	Name      string
	Addresses []string
}

// Order puts nodes under one access switch next to each other. The nodes come in the order of their ranks, and the
// first stays the first, with its switch. The other switches of its pod switch follow, and then those of the others;
// what is alike in that keeps its order. Nodes that the table does not know go last.
//
// This is an order for first ranks. A node that has a rank keeps it in the master (src/master/rules/placement.h),
// whoever joins later, so that no other node has to move.
func (t *Table) Order(nodes []Node) []Node {
	type placed struct {
		node   Node
		key    [3]int // unknown, pod switch, access switch
		before int
	}
	podSwitches, accessSwitches := map[string]int{}, map[string][2]int{}
	sorted := make([]placed, 0, len(nodes))
	for i, node := range nodes {
		place, _, known := t.Find(node.Addresses...)
		if !known {
			first := min(i, 1) // only the first node is not last
			sorted = append(sorted, placed{node, [3]int{first * 2}, i})
			continue
		}
		key, seen := accessSwitches[place.AccessSwitch]
		if !seen {
			key = [2]int{numberOf(podSwitches, place.PodSwitch), len(accessSwitches)}
			accessSwitches[place.AccessSwitch] = key
		}
		sorted = append(sorted, placed{node, [3]int{1, key[0], key[1]}, i})
	}
	slices.SortFunc(sorted, func(a, b placed) int {
		return cmp.Or(slices.Compare(a.key[:], b.key[:]), cmp.Compare(a.before, b.before))
	})
	ordered := make([]Node, 0, len(nodes))
	for _, one := range sorted {
		ordered = append(ordered, one.node)
	}
	return ordered
}

func numberOf(numbers map[string]int, name string) int {
	number, known := numbers[name]
	if !known {
		number = len(numbers)
		numbers[name] = number
	}
	return number
}
