{{/* Of objects in the release's namespace; a label value, so 63 characters at most. */}}
{{- define "daytona-controller.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of objects outside of namespaces: two releases of one name in two namespaces must not meet. */}}
{{- define "daytona-controller.clusterName" -}}
{{- $name := include "daytona-controller.fullname" . -}}
{{- if eq $name .Release.Namespace -}}
{{- $name -}}
{{- else -}}
{{- printf "%s:%s" .Release.Namespace $name -}}
{{- end -}}
{{- end -}}

{{- define "daytona-controller.serviceAccountName" -}}
{{- default (include "daytona-controller.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Never change: a Deployment's selector is immutable. */}}
{{- define "daytona-controller.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "daytona-controller.labels" -}}
{{ include "daytona-controller.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{/* What the controller may do in the namespaces that it watches, beside what it may do with its own two kinds. Each
verb is used, and `tests/chart.rs` says by what. */}}
{{- define "daytona-controller.namespaceRules" -}}
# The watches ask for metadata alone, and a value is read only when a lease or a command names the Secret or ConfigMap.
# RBAC can say neither: who may list Secrets may read them. watchNamespaces bounds where. Logs of commands are stored in
# new ConfigMaps, or Secrets where the command says so; nothing is changed or deleted.
- apiGroups: [""]
  resources: [secrets, configmaps]
  verbs: [get, list, watch, create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- define "daytona-controller.subjects" -}}
- kind: ServiceAccount
  name: {{ include "daytona-controller.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
