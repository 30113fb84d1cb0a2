{{/* The name of what belongs to the release. */}}
{{- define "phalanx.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What finds the operator's pods. */}}
{{- define "phalanx.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "phalanx.labels" -}}
{{ include "phalanx.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "phalanx.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "phalanx.fullname" .) -}}
{{- end -}}

{{/*
An image's whole name. Arguments: root, field (for sentences), of (what has image, and perhaps "image.tag"), otherwise
(the name where none is given). DLRover's guide has both image and image.tag, which are one value and a part of it; the
two together are name and tag, or image and, as one word, "image.tag".
*/}}
{{- define "phalanx.image" -}}
{{- $name := .otherwise -}}
{{- $tag := get .of "image.tag" | default "" -}}
{{- if kindIs "map" .of.image -}}
  {{- $name = .of.image.name | default .otherwise -}}
  {{- if and $tag .of.image.tag -}}
    {{- fail (printf "%s: it has a tag, and so has %s.tag in one word; expected one of them" .field .field) -}}
  {{- end -}}
  {{- $tag = $tag | default .of.image.tag | default "" -}}
{{- else if .of.image -}}
  {{- $name = .of.image -}}
{{- end -}}
{{- if kindIs "float64" $tag -}}
  {{- fail (printf "%s.tag: %v is a number, of which YAML drops zeros; expected a text, in quotes" .field $tag) -}}
{{- end -}}
{{- $tag = toString $tag -}}
{{- if or (contains "://" $name) (regexMatch "[[:space:]]" $name) -}}
  {{- fail (printf "%s: %q is no image; expected a name as elasticjob-controller, registry.example.com/training/controller or controller:1" .field $name) -}}
{{- end -}}
{{- $tagged := or (contains "@" $name) (contains ":" (splitList "/" $name | last)) -}}
{{- if and $tagged $tag -}}
  {{- fail (printf "%s.tag is %q, and the name %q has a tag of its own; expected one of them" .field $tag $name) -}}
{{- end -}}
{{- if not $tagged -}}
  {{- $name = printf "%s:%s" $name ($tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- $parts := splitList "/" $name -}}
{{- $first := first $parts -}}
{{- $hosted := and (gt (len $parts) 1) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- if and .root.Values.registry (not $hosted) -}}
  {{- $name = printf "%s/%s" (trimSuffix "/" .root.Values.registry) $name -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "phalanx.controllerImage" -}}
{{- include "phalanx.image" (dict "root" . "field" "controller.image" "of" .Values.controller "otherwise" "elasticjob-controller") -}}
{{- end -}}

{{- define "phalanx.masterImage" -}}
{{- include "phalanx.image" (dict "root" . "field" "dlroverMaster.image" "of" .Values.dlroverMaster "otherwise" "dlrover-master") -}}
{{- end -}}

{{- define "phalanx.launcherImage" -}}
{{- include "phalanx.image" (dict "root" . "field" "launcher.image" "of" .Values.launcher "otherwise" "phalanx-launcher") -}}
{{- end -}}

{{/* What the schema cannot say in a sentence. */}}
{{- define "phalanx.check" -}}
{{- range $key, $value := .Values -}}
  {{- if contains "." $key -}}
    {{- $parts := splitn "." 2 $key -}}
    {{- fail (printf "%q is one word here, and no option; expected %s below %s, as in %s: {%s: ...}" $key $parts._1 $parts._0 $parts._0 $parts._1) -}}
  {{- end -}}
{{- end -}}
{{- range $key := list "excludedFor" "startBlockedFor" -}}
  {{- $value := get $.Values.controller $key -}}
  {{- if not (regexMatch "^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$" $value) -}}
    {{- fail (printf "controller.%s: %q is no time; expected one as 24h, 10m or 1h30m" $key $value) -}}
  {{- end -}}
{{- end -}}
{{- range $flag := .Values.controller.extraArgs -}}
  {{- if not (regexMatch "^--[a-z]" $flag) -}}
    {{- fail (printf "controller.extraArgs: %q; expected a flag and its value in one, as --kube-api-qps=100" $flag) -}}
  {{- end -}}
{{- end -}}
{{- $most := .Values.podDisruptionBudget.maxUnavailable -}}
{{- if and (kindIs "string" $most) (not (regexMatch "^[1-9][0-9]?[0-9]?%$" $most)) -}}
  {{- fail (printf "podDisruptionBudget.maxUnavailable: %q; expected a number of pods, or a part of them as 50%%" $most) -}}
{{- end -}}
{{- if contains "://" .Values.registry -}}
  {{- fail (printf "registry: %q; expected a host and a path, as registry.example.com/training, without %s://" .Values.registry (splitList "://" .Values.registry | first)) -}}
{{- end -}}
{{- if not .Values.serviceAccount.create -}}
  {{- if not .Values.serviceAccount.name -}}
    {{- fail "serviceAccount.name: empty, and serviceAccount.create is false; expected the name of an account that is there" -}}
  {{- end -}}
{{- end -}}
{{- if eq .Values.serviceAccount.name "default" -}}
  {{- fail "serviceAccount.name: \"default\" is the account of all pods that name none, and they would get the operator's rights; expected another" -}}
{{- end -}}
{{- if and .Values.metrics.readers (not .Values.rbac.create) -}}
  {{- fail "metrics.readers: rbac.create is false, and so nobody is given the right to read; expected it to be empty, or rbac.create" -}}
{{- end -}}
{{- range $i, $reader := .Values.metrics.readers -}}
  {{- if eq $reader.name "default" -}}
    {{- fail (printf "metrics.readers: %q of %s is the account of all pods there that name none; expected another" $reader.name $reader.namespace) -}}
  {{- end -}}
{{- end -}}
{{- range $i, $line := splitList "\n" .Values.topoMapper.topology_config -}}
  {{- $words := regexReplaceAll "#.*" $line "" | replace "," " " | replace "\t" " " | replace "\r" " " | splitList " " | compact -}}
  {{- if not (has (len $words) (list 0 3)) -}}
    {{- fail (printf "topoMapper.topology_config: line %d: %q: expected 3 words, not %d, as in: asw-0 psw-0 192.168.0.1" (add1 $i) (trim $line) (len $words)) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
