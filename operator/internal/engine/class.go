package engine

import (
	"fmt"
	"strconv"
	"strings"
)

// Class says what kind of end a pod had, and so which budget it costs.
type Class int

const (
	// Application is an end by the program: it costs the user's restartCount.
	Application Class = iota
	// OutOfMemory is an end by the kernel for a container's memory; it has a budget of its own.
	OutOfMemory
	// Hardware is an exit code that blames the machine. The node is left out from then on.
	Hardware
	// Killed is a signal that nobody explains. The first few cost nothing.
	Killed
	// Disruption is an end by the cluster: preemption, eviction, a drained or lost node.
	Disruption
	// Deleted is an end by somebody who deleted the pod.
	Deleted

	classCount
)

var classNames = [classCount]string{"Application", "OutOfMemory", "Hardware", "Killed", "Disruption", "Deleted"}

func (c Class) String() string { return classNames[c] }

// Counts is how often a rank's pods have ended, by class.
type Counts [classCount]int32

// With returns the counts with one more of a class.
func (c Counts) With(class Class) Counts {
	c[class]++
	return c
}

// Merge returns the larger of both for each class: both are counts of the same rank, one perhaps older.
func (c Counts) Merge(other Counts) Counts {
	for class := range c {
		c[class] = max(c[class], other[class])
	}
	return c
}

// Total is how many pods of the rank have been replaced.
func (c Counts) Total() int32 {
	var total int32
	for _, count := range c {
		total += count
	}
	return total
}

// Map has the classes that are not zero, by name.
func (c Counts) Map() map[string]int32 {
	counts := map[string]int32{}
	for class, count := range c {
		if count > 0 {
			counts[classNames[class]] = count
		}
	}
	return counts
}

// CountsOf is the inverse of Map. Classes it does not know are left out: a newer operator has written them.
func CountsOf(byName map[string]int32) Counts {
	var counts Counts
	for class, name := range classNames {
		counts[class] = max(byName[name], 0)
	}
	return counts
}

// String is "Application=1,Killed=2", empty for no ends: the form of the pods' annotation.
func (c Counts) String() string {
	var parts []string
	for class, count := range c {
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", classNames[class], count))
		}
	}
	return strings.Join(parts, ",")
}

// ParseCounts reads what String writes. Users can write annotations, so that whatever does not fit is left out: the
// copy in the job's status still counts.
func ParseCounts(text string) Counts {
	byName := map[string]int32{}
	for part := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(part, "=")
		if count, err := strconv.ParseInt(number, 10, 32); err == nil {
			byName[name] = int32(count)
		}
	}
	return CountsOf(byName)
}
