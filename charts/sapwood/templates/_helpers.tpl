{{/*
Name of a component's objects: RELEASE-COMPONENT. Call with (dict "root" $ "component" "gateway").
A Service's name is a DNS-1035 label of at most 63 characters; Helm keeps release names to 53 but takes dots and digits.
*/}}
{{- define "sapwood.name" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .root.Release.Name) -}}
{{- fail (printf "the release name %q cannot begin the name of a Service: use lower-case letters, digits and '-', a letter first" .root.Release.Name) -}}
{{- end -}}
{{ .root.Release.Name }}-{{ .component }}
{{- end }}

{{/* Labels that never change: what Deployments, Services and policies select by. The operator selects gateway pods by them too. */}}
{{- define "sapwood.selector" -}}
app.kubernetes.io/name: sapwood
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "sapwood.labels" -}}
{{ include "sapwood.selector" . }}
app.kubernetes.io/part-of: sapwood
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* An image: as named in full, or the default name in the registry. Call with (dict "root" $ "named" "…" "default" "engine"). */}}
{{- define "sapwood.image" -}}
{{- $default := printf "sapwood/%s:%s" .default .root.Chart.AppVersion -}}
{{- if .root.Values.images.registry -}}
{{- $default = printf "%s/%s" .root.Values.images.registry $default -}}
{{- end -}}
{{ .named | default $default }}
{{- end }}

{{/* Name of the Secret that operator and gateway share. */}}
{{- define "sapwood.secret" -}}
{{ .Values.secret.existingSecret | default (include "sapwood.name" (dict "root" $ "component" "secret")) }}
{{- end }}

{{/* What every pod of the chart has in its spec; it passes the restricted Pod Security profile. */}}
{{- define "sapwood.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sapwood.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Where the pods of a component may run. Call with (dict "root" $ "component" "gateway"). */}}
{{- define "sapwood.scheduling" -}}
{{- $values := index .root.Values .component -}}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if $values.topologySpread }}
topologySpreadConstraints:
{{- range $values.topologySpread }}
  - topologyKey: {{ .topologyKey | quote }}
    maxSkew: {{ .maxSkew }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{- include "sapwood.selector" $ | nindent 8 }}
    # Pods of the revision before do not count, or a rolling update would pack the new ones.
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
{{- end }}

{{/* The rules that operator and gateway need in every namespace that they serve; tests/chart freezes them. */}}
{{- define "sapwood.operatorRules" -}}
- apiGroups: [serving.sapwood.dev]
  resources: [inferenceservices, tenants, autoscalingpolicies]
  verbs: [list, watch]
- apiGroups: [serving.sapwood.dev]
  resources: [inferenceservices/status, tenants/status, autoscalingpolicies/status]
  verbs: [patch]
# Owner references with blockOwnerDeletion need it where OwnerReferencesPermissionEnforcement is on (OpenShift).
- apiGroups: [serving.sapwood.dev]
  resources: [inferenceservices/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
# The credential by which engines know the gateway. No verb here lets anybody read, change or list a Secret.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [ingresses, networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, list, watch, create, patch, delete]
# To say why a rollout waits.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
# Patched is one annotation: which pod goes first when a Deployment shrinks.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "sapwood.gatewayRules" -}}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch]
- apiGroups: [serving.sapwood.dev]
  resources: [tenants]
  verbs: [list, watch]
{{- with .root.Values.gateway.tenants.keySecrets }}
# Hashes of API keys. No verb here lets it find out which Secrets there are.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
{{- end }}

{{/*
Bind rules to a component's ServiceAccount: in all the cluster, or in each watched namespace.
A second release that watches everything fails on the ClusterRole's name where it has the same name; two operators over
the same objects both lead and overwrite each other's writes, which README.md forbids.
*/}}
{{- define "sapwood.grant" -}}
{{- $name := include "sapwood.name" . -}}
{{- $kind := ternary "Role" "ClusterRole" (gt (len .root.Values.watchNamespaces) 0) -}}
{{- range (.root.Values.watchNamespaces | default (list "")) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  {{- with . }}
  namespace: {{ . | quote }}
  {{- end }}
  labels: {{- include "sapwood.labels" $ | nindent 4 }}
rules: {{- include (printf "sapwood.%sRules" $.component) $ | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $name }}
  {{- with . }}
  namespace: {{ . | quote }}
  {{- end }}
  labels: {{- include "sapwood.labels" $ | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ $name }}, namespace: {{ $.root.Release.Namespace | quote }}}
{{- end }}
{{- end }}

{{/*
Whether objects of the Prometheus operator are made: "true" or nothing.
Call with (dict "root" $ "create" .Values.metrics.rules.create "kind" "PrometheusRule").
*/}}
{{- define "sapwood.monitoring" -}}
{{- $served := .root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) -}}
{{- if or (eq .create "Always") (and (eq .create "Auto") $served) -}}
true
{{- end -}}
{{- end }}

{{/* The page to which alerts link; alerts add a fragment. */}}
{{- define "sapwood.runbooks" -}}
{{- $operator := include "sapwood.name" (dict "root" $ "component" "operator") -}}
{{ .Values.metrics.rules.runbookUrl | default (printf "http://%s.%s.svc.%s/runbooks" $operator .Release.Namespace .Values.clusterDomain) }}
{{- end }}
