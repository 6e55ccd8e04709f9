{{- define "ledgerlog.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "ledgerlog.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: bookie
{{- end }}

{{- define "ledgerlog.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "ledgerlog.environment" -}}
- name: LEDGERLOG_URI
  value: {{ required "metadata: name the metadata store, zk://HOST:PORT/CHROOT" .Values.metadata | quote }}
- name: LEDGERLOG_SECRET_FILE
  value: /etc/ledgerlog/cluster.secret
{{- end }}

{{- define "ledgerlog.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "ledgerlog.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Kubernetes lets the group read a mounted secret, and ledgerlog uses only what nobody else may read. So copy it. */}}
{{- define "ledgerlog.secretCopier" -}}
- name: secret
  image: {{ include "ledgerlog.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [install, -m, "0600", /mnt/secret/cluster.secret, /etc/ledgerlog/cluster.secret]
  securityContext: {{- include "ledgerlog.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: mounted-secret, mountPath: /mnt/secret, readOnly: true}
    - {name: secret, mountPath: /etc/ledgerlog}
{{- end }}

{{- define "ledgerlog.volumes" -}}
- name: mounted-secret
  secret:
    secretName: {{ required "secretName: name the Kubernetes secret with the key cluster.secret" .Values.secretName }}
    defaultMode: 0440
- name: secret
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end }}
