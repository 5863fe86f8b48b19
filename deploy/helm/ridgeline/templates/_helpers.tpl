{{- define "ridgeline.name" -}}
{{- if contains "ridgeline" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-ridgeline" (.Release.Name | trunc 40 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "ridgeline.selector" -}}
app.kubernetes.io/name: ridgeline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ridgeline.labels" -}}
{{ include "ridgeline.selector" . }}
app.kubernetes.io/component: gateway
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "ridgeline.account" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else if .Values.serviceAccount.create }}{{ include "ridgeline.name" . }}{{ else }}default{{ end }}
{{- end }}

{{- define "ridgeline.image" -}}
{{- if .Values.image.digest }}{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}{{ else }}{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}{{ end }}
{{- end }}

{{- /* Namespaces with workers that are found by Kubernetes, as JSON {"names": [...]}; "" for that of the release. */}}
{{- define "ridgeline.namespaces" -}}
{{- $names := list }}
{{- range $model := .Values.config.models }}
{{- $holders := concat (list $model) ($model.pools | default list) }}
{{- range $pool := $model.pools }}
{{- with $pool.prefill }}
{{- $holders = append $holders . }}
{{- end }}
{{- end }}
{{- range $holder := $holders }}
{{- if kindIs "map" $holder.workers }}
{{- with $holder.workers.kubernetes }}
{{- $names = append $names (.namespace | default $.Release.Namespace) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- dict "names" ($names | uniq | sortAlpha) | toJson }}
{{- end }}

{{- /* The gateway's configuration with the addresses of the chart. */}}
{{- define "ridgeline.config" -}}
{{- $addresses := dict "listen" "0.0.0.0:8080" "observe_listen" "0.0.0.0:8082" "admin_listen" "127.0.0.1:8081" }}
{{- merge (deepCopy $addresses) (deepCopy .Values.config) | toYaml }}
{{- end }}
